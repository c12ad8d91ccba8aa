// NVTX ranges and marks, which do nothing here. Used where the toolkit lacks the header.
#pragma once
#include <stdint.h>
#define NVTX_VERSION 3
#define NVTX_EVENT_ATTRIB_STRUCT_SIZE ((uint16_t)sizeof(nvtxEventAttributes_t))

typedef uint64_t nvtxRangeId_t;
typedef struct nvtxDomain* nvtxDomainHandle_t;
typedef struct nvtxString* nvtxStringHandle_t;
typedef enum { NVTX_COLOR_UNKNOWN = 0, NVTX_COLOR_ARGB = 1 } nvtxColorType_t;
typedef enum { NVTX_MESSAGE_UNKNOWN = 0, NVTX_MESSAGE_TYPE_ASCII = 1, NVTX_MESSAGE_TYPE_UNICODE = 2, NVTX_MESSAGE_TYPE_REGISTERED = 3 } nvtxMessageType_t;
typedef enum { NVTX_PAYLOAD_UNKNOWN = 0, NVTX_PAYLOAD_TYPE_UNSIGNED_INT64 = 1, NVTX_PAYLOAD_TYPE_INT64 = 2, NVTX_PAYLOAD_TYPE_DOUBLE = 3 } nvtxPayloadType_t;
typedef union { const char* ascii; const wchar_t* unicode; nvtxStringHandle_t registered; } nvtxMessageValue_t;
typedef struct {
  uint16_t version, size;
  uint32_t category;
  int32_t colorType;
  uint32_t color;
  int32_t payloadType, reserved0;
  union { uint64_t ullValue; int64_t llValue; double dValue; uint32_t uiValue; int32_t iValue; float fValue; } payload;
  int32_t messageType;
  nvtxMessageValue_t message;
} nvtxEventAttributes_t;

#define GEMMGEN_NVTX static inline __attribute__((unused))
GEMMGEN_NVTX void nvtxMarkA(const char* text) { (void)text; }
GEMMGEN_NVTX void nvtxMarkEx(const nvtxEventAttributes_t* event) { (void)event; }
GEMMGEN_NVTX int nvtxRangePushA(const char* text) { (void)text; return 0; }
GEMMGEN_NVTX int nvtxRangePushEx(const nvtxEventAttributes_t* event) { (void)event; return 0; }
GEMMGEN_NVTX int nvtxRangePop(void) { return 0; }
GEMMGEN_NVTX nvtxRangeId_t nvtxRangeStartA(const char* text) { (void)text; return 0; }
GEMMGEN_NVTX nvtxRangeId_t nvtxRangeStartEx(const nvtxEventAttributes_t* event) { (void)event; return 0; }
GEMMGEN_NVTX void nvtxRangeEnd(nvtxRangeId_t range) { (void)range; }
GEMMGEN_NVTX void nvtxNameCategoryA(uint32_t category, const char* name) { (void)category, (void)name; }
GEMMGEN_NVTX void nvtxNameOsThreadA(uint32_t thread, const char* name) { (void)thread, (void)name; }
GEMMGEN_NVTX nvtxDomainHandle_t nvtxDomainCreateA(const char* name) { (void)name; return 0; }
GEMMGEN_NVTX void nvtxDomainDestroy(nvtxDomainHandle_t domain) { (void)domain; }
GEMMGEN_NVTX int nvtxDomainRangePushEx(nvtxDomainHandle_t domain, const nvtxEventAttributes_t* event) { (void)domain, (void)event; return 0; }
GEMMGEN_NVTX int nvtxDomainRangePop(nvtxDomainHandle_t domain) { (void)domain; return 0; }
#undef GEMMGEN_NVTX
#define nvtxMark nvtxMarkA
#define nvtxRangePush nvtxRangePushA
#define nvtxRangeStart nvtxRangeStartA
#define nvtxNameCategory nvtxNameCategoryA
#define nvtxNameOsThread nvtxNameOsThreadA
#define nvtxDomainCreate nvtxDomainCreateA
