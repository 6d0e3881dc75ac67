"""fxpool: a compile service for torch.compile."""

__version__ = "0.1.0"
