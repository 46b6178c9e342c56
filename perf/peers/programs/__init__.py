"""The peers' training programs. Each runs in an environment of its own until it is ended from outside."""
