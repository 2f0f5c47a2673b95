"""The text that a telling worker writes: letter after letter, by the position of the token."""

LETTERS = "abcdefghijklmnopqrstuvwxyz"
FIRST_LETTER = 3 + 64
"""Token of the first letter. The toy model's tokens are three special ones, then the bytes in the order of their
stand-ins: those that can be printed come first, from ``!`` on."""
OPENING = 8
"""Parts of an answer that a worker sends before it waits at its gate."""
