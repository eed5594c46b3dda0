"""The frozen settings, in groups, and the command line made of them."""
