"""Model files for machines without a network, and whether a set-up works on one.

`bundle`  writes, verifies and unpacks bundles: a folder and its SHA256SUMS
`fetch`   finds and downloads what a bundle carries
`doctor`  whether a set-up will work on this machine: runs `checks` one by one
`deep`    compares its letters with a plain forward pass
"""
