"""Moving KV (extra ``gpu``: torch): rotation, relocation, the donor store and the per-model self-test."""
