"""What the lookup benchmark runs on: real text, its variations, and the peer beside us."""
