"""The tooling of the workspace: standard library only, so that it runs before anything is installed."""
