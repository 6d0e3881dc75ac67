"""The version of fxpool, defined only here."""

__version__ = "0.1.0"
