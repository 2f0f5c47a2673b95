"""The eviction laboratory: which KV to keep. Simulated caches, seeded workloads, real traces, the offline optimum."""
