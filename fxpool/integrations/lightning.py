"""A callback for the Trainer of Lightning that logs what fxpool did since the training began.

    Trainer(callbacks=[FxpoolCallback()], ...)

The numbers (`training.NAMES`) go through the module's log, so that all loggers get them at the Trainer's logging steps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxpool.errors import MissingExtraError
from fxpool.integrations.training import Since

try:
    from lightning.pytorch.callbacks import Callback
except ImportError as error:
    raise MissingExtraError("callbacks of Lightning", "lightning", "lightning") from error

if TYPE_CHECKING:
    from lightning.pytorch import LightningModule, Trainer
    from lightning.pytorch.utilities.types import STEP_OUTPUT

__all__ = ["FxpoolCallback"]


class FxpoolCallback(Callback):
    """Logs hits, misses, compile seconds and seconds saved at the logging steps of a training, and at its end.

    Only the process with rank 0 logs, and only its own counts: those of other ranks differ.
    """

    def __init__(self) -> None:
        self._since: Since | None = None
        self._logged: dict[str, float] = {}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Not when the first epoch starts: the sanity check of validation compiles before it.
        self._since = Since() if trainer.is_global_zero and not trainer.barebones else None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: STEP_OUTPUT, batch: object, batch_idx: int
    ) -> None:
        if self._since is None:
            return
        values = self._since.values()
        # The log keeps a value until the epoch ends. To pass it on costs a copy to the device, which waits for that.
        if batch_idx == 0 or values != self._logged:
            self._logged = values
            # `rank_zero_only`: nothing is exchanged with the other ranks, which do not call it.
            pl_module.log_dict(values, on_step=True, on_epoch=False, rank_zero_only=True, batch_size=1)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._since is not None:
            for logger in trainer.loggers:  # here modules have no log; a short training had no logging step
                logger.log_metrics(self._since.values(), step=trainer.global_step)
            self._since = None
