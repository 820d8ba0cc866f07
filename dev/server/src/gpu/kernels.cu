// The kernels of the model beside its attention and its products, compiled by NVRTC when the server starts.
// Numbers of 16 bits are bfloat16; sums are float32.

typedef unsigned short bf16;
typedef unsigned int u32;

#define FAR __int_as_float(0x7f800000)

__device__ __forceinline__ float wide(bf16 x) { return __uint_as_float((u32)x << 16); }

// To the nearest, ties to even.
__device__ __forceinline__ bf16 narrow(float x) {
    u32 bits = __float_as_uint(x);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (bf16)((bits >> 16) | 0x40u);
    return (bf16)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// The functions of weights.rs.
__device__ __forceinline__ u32 mix(u32 x) {
    x ^= x >> 16; x *= 0x7feb352du; x ^= x >> 15; x *= 0x846ca68bu; return x ^ (x >> 16);
}

__device__ __forceinline__ float gumbel(u32 seed, u32 position, u32 token) {
    u32 hash = mix(seed ^ mix(position ^ mix(token)));
    return -logf(-logf(((float)(hash >> 9) + 0.5f) * (1.0f / 8388608.0f)));
}

extern "C" __global__ void fill(bf16* out, u32 count, u32 seed, float scale, float middle) {
    for (u32 i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
        float unit = (float)(mix(seed ^ mix(i)) >> 8) * (1.0f / 8388608.0f) - 1.0f;
        // Not as one operation: the host has none.
        out[i] = narrow(__fadd_rn(middle, __fmul_rn(scale, unit)));
    }
}

// A number from memory as a place among so many; 0 for one that is not there, so that no kernel leads outside.
__device__ __forceinline__ int within(int place, int room) { return place >= 0 && place < room ? place : 0; }

// A block for each row.
extern "C" __global__ void embed(bf16* x, const bf16* table, const int* tokens, int hidden, int vocab) {
    const bf16* from = table + (size_t)within(tokens[blockIdx.x], vocab) * hidden;
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) x[(size_t)blockIdx.x * hidden + i] = from[i];
}

// The sum over a block of at most 1024 threads, known to all of them.
__device__ float block_sum(float x) {
    __shared__ float parts[32];
    for (int at = 16; at > 0; at >>= 1) x += __shfl_xor_sync(0xffffffffu, x, at);
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < (int)(blockDim.x + 31) / 32; i++) sum += parts[i];
    return sum;
}

__device__ float block_max(float x) {
    __shared__ float parts[32];
    for (int at = 16; at > 0; at >>= 1) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, at));
    __syncthreads();
    if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = x;
    __syncthreads();
    float most = parts[0];
    for (int i = 1; i < (int)(blockDim.x + 31) / 32; i++) most = fmaxf(most, parts[i]);
    return most;
}

__device__ __forceinline__ float low(u32 pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high(u32 pair) { return __uint_as_float(pair & 0xffff0000u); }
__device__ __forceinline__ float squares(u32 pair) { return low(pair) * low(pair) + high(pair) * high(pair); }
__device__ __forceinline__ u32 scaled(u32 pair, float by, u32 factors) {
    return (u32)narrow(low(pair) * by * low(factors)) | (u32)narrow(high(pair) * by * high(factors)) << 16;
}

// RMSNorm of a row for each block, eight numbers for each thread at a time. With `rows`, of chosen rows.
extern "C" __global__ void rms_norm(bf16* out, const bf16* x, const bf16* factors, const int* rows, int hidden,
                                    int room) {
    int row = rows ? within(rows[blockIdx.x], room) : (int)blockIdx.x, vectors = hidden / 8;
    const uint4* from = (const uint4*)(x + (size_t)row * hidden);
    uint4* to = (uint4*)(out + (size_t)blockIdx.x * hidden);
    float sum = 0.0f;
    for (int i = threadIdx.x; i < vectors; i += blockDim.x) {
        uint4 v = from[i];
        sum += squares(v.x) + squares(v.y) + squares(v.z) + squares(v.w);
    }
    float by = rsqrtf(block_sum(sum) / (float)hidden + 1e-5f);
    for (int i = threadIdx.x; i < vectors; i += blockDim.x) {
        uint4 v = from[i], f = ((const uint4*)factors)[i];
        to[i] = make_uint4(scaled(v.x, by, f.x), scaled(v.y, by, f.y), scaled(v.z, by, f.z), scaled(v.w, by, f.w));
    }
}

// Rotary embedding of queries and keys; keys and values go into their pages. A block for each head of each row.
extern "C" __global__ void rotate(bf16* q, bf16* keys, bf16* values, const bf16* qkv, const int* positions,
                                  const int* slots, int heads, int kv_heads, int head_dim, int room) {
    int row = blockIdx.x, head = blockIdx.y, half = head_dim / 2, slot = slots[row];
    const bf16* from = qkv + ((size_t)row * (heads + 2 * kv_heads) + head) * head_dim;
    bf16* to;
    if (head < heads) to = q + ((size_t)row * heads + head) * head_dim;
    else if (slot < 0 || slot >= room) return;
    else to = (head < heads + kv_heads ? keys : values) + ((size_t)slot * kv_heads + (head - heads) % kv_heads) * head_dim;
    for (int i = threadIdx.x; i < half; i += blockDim.x) {
        float sin = 0.0f, cos = 1.0f, a = wide(from[i]), b = wide(from[i + half]);
        if (head < heads + kv_heads)
            sincosf((float)positions[row] * powf(500000.0f, -(float)i / (float)half), &sin, &cos);
        to[i] = narrow(a * cos - b * sin);
        to[i + half] = narrow(b * cos + a * sin);
    }
}

// SiLU of the gate times up; a row of blocks for each row.
extern "C" __global__ void silu(bf16* out, const bf16* gate_up, int inner) {
    int i = blockIdx.y * blockDim.x + threadIdx.x;
    if (i >= inner) return;
    const bf16* from = gate_up + (size_t)blockIdx.x * 2 * inner;
    float gate = wide(from[i]);
    out[(size_t)blockIdx.x * inner + i] = narrow(gate / (1.0f + expf(-gate)) * wide(from[inner + i]));
}

// The token of a row of logits for each block, and how far the target's logit is below the largest.
extern "C" __global__ void pick(int* out, const float* logits, const int* rows, const int* positions,
                                const float* temperatures, const int* seeds, const int* targets, int vocab,
                                int room) {
    const float* from = logits + (size_t)blockIdx.x * vocab;
    float t = temperatures[blockIdx.x], best = -FAR, largest = -FAR;
    u32 seed = (u32)seeds[blockIdx.x], position = (u32)positions[within(rows[blockIdx.x], room)];
    int token = 0;
    for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
        float logit = from[i], with = t > 0.0f ? logit + t * gumbel(seed, position, (u32)i) : logit;
        largest = fmaxf(largest, logit);
        if (with > best) { best = with; token = i; }
    }
    largest = block_max(largest);
    float most = block_max(best);
    // Of equal tokens the first: the largest of the negated numbers.
    float first = block_max(best == most ? -(float)token : -FAR);
    if (threadIdx.x == 0) {
        int target = targets[blockIdx.x];
        out[2 * blockIdx.x] = (int)-first;
        out[2 * blockIdx.x + 1] = __float_as_int(target >= 0 && target < vocab ? largest - from[target] : 0.0f);
    }
}
