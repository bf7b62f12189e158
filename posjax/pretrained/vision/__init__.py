"""Vision transformers from the files of Google, timm, transformers and posjax."""
