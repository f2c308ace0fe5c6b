"""trl, peft, transformers and bitsandbytes: from a trial's specification to a trainer that announces its phases.

The only package that knows them. It does not know where it runs: a device and an observer of phases come in.
"""
