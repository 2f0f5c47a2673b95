"""The demo: one screen that shows what SemBlend does."""
