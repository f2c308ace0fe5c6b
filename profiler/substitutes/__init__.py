r"""Substitutes for what a training script loads and this machine does not have: weights, tokenizers and data sets.

`substitutes` replaces the functions by which scripts load them, for the length of a run. What was replaced is collected
in a `Replaced`, whose line is the first one of the report. Memory depends on shapes and lengths, which the substitutes
have from the model's configuration and from the options.

What takes the place of what is not here:
    - a model by name (`from_pretrained` of transformers, and of sentence-transformers, which loads by it): its
      configuration, built in, known or in a local folder, and random weights, loaded by transformers itself; on an
      emulated or simulated card they take no host memory until something writes to them.
    - a model or scheduler of diffusers by name: the same; parts of Stable Diffusion 1, 2 and XL are known.
    - a model whose configuration is nowhere: the defaults of its class, which the report names as **assumed**. If the
      name says how many parameters it has (`opt-2.7b`) and the defaults have others, it is refused.
    - a tokenizer whose files are not here: one token per word, as many tokens as the model's vocabulary, a chat
      template.
    - an image processor whose files are not here (`AutoImageProcessor`): the defaults of the class that transformers
      has for the model, with its size of images.
    - a data set that is not here (`load_dataset`, `load_from_disk`): 1,024 rows per split: columns as below; prompts
      of `prompt_tokens=256`, completions of `completion_tokens=512`, texts of both, images of 512 x 512 pixels.
    - MNIST, FashionMNIST, KMNIST, EMNIST, CIFAR, SVHN and STL10 of torchvision: 1,024 grey images of the same size,
      and labels of all classes.
    - a metric of `evaluate`: a metric that computes nothing: every figure is 0.5.
    - flash-attn, with `backend=emulated` and in a command of `gpus=`: torch's own FlashAttention kernels, and the
      memory of its Triton loss. In a command also flash-attn 3 of the hub, which the package kernels loads.
    - files of a model that a library asks a hub for, also ModelScope's, in a command of `gpus=`: a folder with its
      configuration, which vLLM takes with `load_format=dummy`.

Columns of data sets:
    - About a hundred well-known data sets have the columns and splits of their pages on the hub, those with several
      parts (GLUE, all-nli) by part.
    - A file that verl reads has the columns that its own scripts write, and questions of GSM8K. Any other data set of
      ms-swift or axolotl has the columns that these look for.
    - Any other one has the columns that the script reads: in functions, loops and outside of both, also in files next
      to the script that it imports, and through its own functions; named by a constant, by an option of the command
      line, or by an argument such as `dataset_text_field`; by trl's trainer, and by the parameters of reward
      functions.
    - What the script does with a value decides its shape: a conversation with `role` and `content` or with `from` and
      `value`, a record with the keys that are read, a list, an image, a number, one of two classes, a text that is
      JSON. If it does nothing with the value, the name of the column decides. A column that the source does not show
      is answered when it is read, and the report names it.
    - Texts of GSM8K, of MATH and its relatives, and of hh-rlhf have the marks by which scripts take them apart: `####
      7`, `\boxed{7}`, `Human:` and `Assistant:`. A script that selects or splits off more rows than there are gets
      them again.
"""

from profiler.substitutes.active import substitutes
from profiler.substitutes.options import Replaced, SubstituteOptions

__all__ = ["Replaced", "SubstituteOptions", "substitutes"]
