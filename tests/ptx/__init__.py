"""Runs PTX without a GPU: a thread block's warps in random order, asynchronous copies and products early or late.

A race shows as a wrong answer under some order; an access that no buffer allows is a `Fault` that names the PTX line.
Not modelled: proxy fences, the memory order between thread blocks (they run one after the other), banks, and lanes of
one warp that are out of step with no need.
"""
