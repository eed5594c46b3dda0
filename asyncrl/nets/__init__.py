"""Plain torch modules: bodies for images and vectors, and the heads the algorithms put on them."""
