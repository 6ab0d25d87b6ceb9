"""Quantizers side by side: the same model, images and machine.

    python -m tests.peers run [--model KEY|FILE] [--peer KEY ...]   records that are missing
    python -m tests.peers time [--model KEY|FILE]                   throughput, in turns
    python -m tests.peers table                                     docs/peers.md

It has an environment of its own (`make peers`): the suite imports none of the peers.
"""
