"""The command-line programs: flags → calls of kbert → a run. Nothing imports them."""

from . import quiet

quiet.import_tensorflow()
