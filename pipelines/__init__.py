"""The command-line programs: flags → calls of kbert → a run. The library never imports them."""

from . import interrupts

interrupts.end_at_once(__name__)
