"""Who can read, or write, what stands in front of a document that another client sent too.

``run-privacy`` serves a donor with a secret or a planted claim in front of a document, then asks, as a client who knows
the document only. What the answer's log-probabilities tell of the twelve candidates is the leak.
"""
