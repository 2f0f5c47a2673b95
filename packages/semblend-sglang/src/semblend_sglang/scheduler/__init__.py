"""What runs on the thread of SGLang's scheduler. Knows no version of SGLang: ``compat`` translates its calls."""
