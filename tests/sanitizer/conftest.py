from cli.conftest import run

__all__ = ["run"]
