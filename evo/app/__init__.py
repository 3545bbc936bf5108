"""What the command line and other programs call: one function a verb. Its module is imported when it is first used:
a verb that needs no archive or model does not wait for theirs."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
