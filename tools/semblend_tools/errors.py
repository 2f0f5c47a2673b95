"""The one exception that ends a command with a message instead of a traceback."""


class ToolError(Exception):
    """Something the person at the keyboard can mend; the message says what and how."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code
