"""VIEW: a local page for traces of any size. The server computes the picture, the page draws it."""
