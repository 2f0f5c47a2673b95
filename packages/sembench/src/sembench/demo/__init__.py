"""The demo: one screen that shows what SemBlend does, on a real model."""
