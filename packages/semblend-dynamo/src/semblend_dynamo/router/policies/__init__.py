"""How a replica is chosen: round robin, by load, by the prompt's beginning, or by what replicas already hold."""

from semblend_dynamo.router.policies.choice import Choice, Policy
from semblend_dynamo.router.policies.locality import SemanticLocality
from semblend_dynamo.router.policies.simple import LeastLoaded, PrefixHash, RoundRobin

__all__ = ["Choice", "LeastLoaded", "Policy", "PrefixHash", "RoundRobin", "SemanticLocality"]
