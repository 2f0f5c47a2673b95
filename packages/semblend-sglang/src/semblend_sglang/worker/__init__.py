"""What touches the device: SGLang's KV pool, and rows as further sequences of a forward batch."""
