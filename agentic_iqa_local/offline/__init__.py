"""Model files for machines without a network, and whether a set-up works on one.

`manifest`  what a bundle or the models folder holds
`bundle`    writes, verifies and unpacks bundles
`fetch`     finds and downloads what a bundle carries
`doctor`    whether a set-up will work on this machine; `deep` compares its letters with a plain forward pass
"""
