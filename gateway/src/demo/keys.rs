//! Keys of the demo, and the partitions that Kafka's clients put them in.

/// Kafka's key hash: murmur2 with its seed, made positive.
///
/// Source: Kafka, `Utils.murmur2` and `BuiltInPartitioner.partitionForKey`.
pub fn partition_of(key: &[u8], partitions: i32) -> i32 {
    let positive = murmur2(key) & 0x7fff_ffff;
    // Below the count of partitions, which is an i32.
    (positive % partitions.max(1).unsigned_abs()) as i32
}

fn murmur2(data: &[u8]) -> u32 {
    const M: u32 = 0x5bd1_e995;
    const R: u32 = 24;
    let mut h = 0x9747_b28c ^ (data.len() as u32);
    let mut words = data.chunks_exact(4);
    for word in words.by_ref() {
        let mut k = word.iter().rev().fold(0u32, |k, byte| k << 8 | u32::from(*byte));
        k = k.wrapping_mul(M);
        k ^= k >> R;
        k = k.wrapping_mul(M);
        h = h.wrapping_mul(M) ^ k;
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        h ^= rest.iter().rev().fold(0u32, |k, byte| k << 8 | u32::from(*byte));
        h = h.wrapping_mul(M);
    }
    h ^= h >> 13;
    h = h.wrapping_mul(M);
    h ^ h >> 15
}

/// All keys: `key-000`, `key-001`, …
pub fn keys(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("key-{n:03}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of Kafka's own `UtilsTest.testMurmur2`.
    #[test]
    fn keys_are_hashed_as_kafka_does() {
        for (text, hash) in [
            ("21", -973_932_308),
            ("foobar", -790_332_482),
            ("a-little-bit-long-string", -985_981_536),
            ("a-little-bit-longer-string", -1_486_304_829),
            ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58_897_971),
            ("abc", 479_470_107),
        ] {
            assert_eq!(murmur2(text.as_bytes()) as i32, hash, "{text}");
        }
    }

    #[test]
    fn every_partition_of_sixteen_has_keys() {
        let mut counts = [0; 16];
        for key in keys(256) {
            counts[partition_of(key.as_bytes(), 16) as usize] += 1;
        }
        assert!(counts.iter().all(|n| *n > 0), "{counts:?}");
    }
}
