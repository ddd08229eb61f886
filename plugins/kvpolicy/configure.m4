SOQ_PLUGIN([kv-full], [auto], [the KV policy that keeps everything], [])
SOQ_PLUGIN([kv-window], [auto], [the KV policy that keeps sinks and a window], [])
SOQ_PLUGIN([kv-snapkv], [auto], [the KV policy that keeps what the end of the prompt attends to], [])
SOQ_PLUGIN([kv-f16], [auto], [the KV codec f16], [])
SOQ_PLUGIN([kv-f32], [auto], [the KV codec f32], [])

# What lets gcc vectorise plain loops at -O2, too; none of it changes a result.
SOQ_CFLAG([SOQ_VECTORISE], [-ftree-vectorize -fvect-cost-model=dynamic -fno-trapping-math])
AC_SUBST([SOQ_VECTORISE])
