/* Stands in for the CUDA toolkit's header of this name while declarations are generated. */
#ifndef QKVAULT_STUB_LIBRARY_TYPES_H
#define QKVAULT_STUB_LIBRARY_TYPES_H
typedef enum { MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL } libraryPropertyType;
#endif
