"""What the router and the telemetry proxy share: reading requests, asking replicas, passing answers on.

Nothing here knows a policy. Read in this order: ``errors``, ``bodies``, ``identity``, ``headers``, ``upstream``,
``answering``.
"""
