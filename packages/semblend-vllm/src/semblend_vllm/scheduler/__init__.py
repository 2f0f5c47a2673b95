"""What runs in vLLM's scheduler: decides on token ids alone what a request reuses, and keeps the books."""
