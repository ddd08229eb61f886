SOQ_PLUGIN([opencl], [auto], [the OpenCL backend], [
    PKG_CHECK_MODULES([OPENCL], [OpenCL], [], [soq_missing="OpenCL (its headers and the ICD loader)"])])
