SOQ_PLUGIN([sampler-standard], [auto], [the sampler standard], [])
