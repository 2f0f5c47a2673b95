"""What the three kinds of generated documents are made of."""

from sembench.manifests.domains.contract_review import CONTRACT_REVIEW
from sembench.manifests.domains.log_triage import LOG_TRIAGE
from sembench.manifests.domains.support_tickets import SUPPORT_TICKETS
from sembench.manifests.grammar import Domain, FactForm

DOMAINS: dict[str, Domain] = {domain.name: domain for domain in (SUPPORT_TICKETS, CONTRACT_REVIEW, LOG_TRIAGE)}

__all__ = ["DOMAINS", "Domain", "FactForm"]
