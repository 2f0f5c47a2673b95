"""The Dynamo router component: core's discovery in front of Dynamo's own KV router.

Read in this order: ``requests``, ``residency``, ``deciding``, ``serving``; then ``events``, ``shared_donors`` and
``peers`` for what router replicas tell each other; ``component`` puts them together.
"""
