"""A stand-in for flwr: see README.md beside this package."""

__version__ = "1.42.0+standin"
