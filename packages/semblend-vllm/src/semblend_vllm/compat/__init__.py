"""What this adapter knows of vLLM's insides, and of which versions. Nothing else here depends on a version."""
