"""A callback for the Trainer of transformers that logs what fxpool did since the training began.

    trainer = Trainer(...)
    trainer.add_callback(FxpoolCallback(trainer))

The numbers (`training.NAMES`) go through the Trainer's log, so that they reach its history, its progress bar and all
reports (TensorBoard, Weights & Biases, ...). A callback that added them to another record's dictionary would not:
reports come before a program's callbacks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxpool.errors import MissingExtraError
from fxpool.integrations.training import Since

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingExtraError("callbacks of the Trainer", "transformers", "transformers") from error

if TYPE_CHECKING:
    from collections.abc import Mapping

    from transformers import Trainer, TrainerControl, TrainerState, TrainingArguments

__all__ = ["FxpoolCallback"]


class FxpoolCallback(TrainerCallback):
    """Logs hits, misses, compile seconds and seconds saved whenever the Trainer logs during a training.

    Only the process with rank 0 logs, and only its own counts: those of other ranks differ.
    """

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._since: Since | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._since = Since() if state.is_world_process_zero else None

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: object
    ) -> None:
        self._since = None

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: Mapping[str, float] | None = None,
        **kwargs: object,
    ) -> None:
        since = self._since
        if since is None:
            return
        from transformers import Trainer  # imported by the program already, but not with this module: 2 s

        self._since = None  # the log calls this method again
        try:
            # The class's own method: a subclass's may wait for the other ranks, which do not call it now.
            Trainer.log(self._trainer, since.values())
        finally:
            self._since = since
