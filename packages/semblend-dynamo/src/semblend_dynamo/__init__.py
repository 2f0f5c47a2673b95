"""SemBlend's place for routing. Today it holds ``semblend_dynamo.evidence``; the router comes next."""
