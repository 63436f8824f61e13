"""The command-line programs: flags → calls of kbert → a run. Nothing imports them."""

from pipelines import quiet

quiet.import_tensorflow()
