"""Model files on disk: bundles, which carry them to a machine without a network, and the models folder that
they are unpacked into.

A bundle is a folder of files with a manifest, or the same as one uncompressed tar archive:

    manifest.json.sha256                 "HASH  manifest.json", as sha256sum writes it
    manifest.json                        every file with size, SHA-256, source and licence, and the licences
                                         that bind
    FOLDER/...                           a vision-language model
    tools/hub/{pyiqa,checkpoints,clip}/  what pyiqa's metrics load, laid out as torch's hub folder
    tools/huggingface/models--ORG--REPO/ what timm and transformers load for them: a Hugging Face cache, its
                                         blobs in place of links (refs/main, snapshots/COMMIT/...)
    wheels/                              an offline installation of the environment

Everything in an archive but the files' bytes follows from the manifest: order, headers, padding, length.
Reading compares with that and interprets nothing else, so links, devices, foreign names, doubled members and
bombs are damage like any other, and the manifest's SHA-256 stands for the whole archive.

The models folder is a bundle in folder form; its manifest is that of all bundles unpacked into it, and is
written last.

`manifest`, `tar`     what a bundle holds, and the headers of its archive
`reading`, `writing`  bundles, from and to a disk
`store`               the models folder
`wanted`, `wheels`    what a configuration needs, and where it comes from
`licences`            which of it may not be used freely
`fetch`               downloads it; nothing else in this package reaches a network
"""
