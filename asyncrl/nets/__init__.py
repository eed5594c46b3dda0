"""Plain torch modules: bodies for images and vectors, and the heads the pages put on them."""
