"""VIEW: a local page for traces of any size. The server makes the picture, the page draws it."""
