"""The first token of ik_llama.cpp (ik-llama-cpp-python): loads a model and computes a prompt.

    peer_first.py MODEL IDS THREADS, run by a Python that has the package; IDS are token ids, 1,2,3

Prints one JSON object: seconds of importing the package, of loading and of the prompt."""
import json
import os
import sys
import time

if len(sys.argv) != 4:
    sys.exit(__doc__)
model, ids, threads = sys.argv[1], [int(i) for i in sys.argv[2].split(",")], int(sys.argv[3])
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # the engine logs to stderr
start = time.perf_counter()
import ik_llama_cpp
from ik_llama_cpp import llama as engine

imported = time.perf_counter()
llm = ik_llama_cpp.IkLlama(model, n_ctx=512, n_threads=threads, verbose=False)
loaded = time.perf_counter()
batch = engine.make_batch_range(ids, pos_start=0, logits_last=True)
if llm._context.decode(batch):
    sys.exit("decode failed")
engine.C.llama_get_logits_ith(llm.ctx, len(ids) - 1)  # waits for them
done = time.perf_counter()
print(json.dumps({"import_s": imported - start, "load_s": loaded - imported, "prompt_s": done - loaded}))
