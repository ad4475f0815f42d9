//! Core's errors as Kafka's codes, in this one place.

use kafka_protocol::ResponseError;
use rangeway_core::error::{AppendError, ReadFailure, TopicError};

/// No error.
pub const NONE: i16 = 0;

/// The code for a batch that was not appended.
pub fn append(error: &AppendError) -> ResponseError {
    match error {
        AppendError::UnknownPartition => ResponseError::UnknownTopicOrPartition,
        AppendError::NotLeader { .. } | AppendError::Stopping => ResponseError::NotLeaderOrFollower,
        AppendError::OutOfOrderSequence { .. } => ResponseError::OutOfOrderSequenceNumber,
        AppendError::ProducerFenced { .. } => ResponseError::InvalidProducerEpoch,
        AppendError::TransactionOpen { .. } => ResponseError::InvalidTxnState,
        AppendError::CoordinatorFenced { .. } => ResponseError::TransactionCoordinatorFenced,
        AppendError::Invalid(_) => ResponseError::InvalidRecord,
        AppendError::Storage(_) => ResponseError::KafkaStorageError,
        AppendError::TimedOut => ResponseError::RequestTimedOut,
    }
}

/// The code for a partition that cannot be read at a place.
pub fn read(error: &ReadFailure) -> ResponseError {
    match error {
        ReadFailure::UnknownPartition => ResponseError::UnknownTopicOrPartition,
        ReadFailure::NotLeader { .. } => ResponseError::NotLeaderOrFollower,
        ReadFailure::OutOfRange { .. } => ResponseError::OffsetOutOfRange,
        ReadFailure::Storage(_) => ResponseError::KafkaStorageError,
    }
}

/// The code for a refused topic command.
pub fn topic(error: &TopicError) -> ResponseError {
    match error {
        TopicError::Exists(_) => ResponseError::TopicAlreadyExists,
        // As Kafka answers about the topic of its controllers.
        TopicError::Reserved(_) => ResponseError::InvalidRequest,
        TopicError::Unknown => ResponseError::UnknownTopicOrPartition,
        TopicError::InvalidPartitions(_) => ResponseError::InvalidPartitions,
        TopicError::InvalidName(_) => ResponseError::InvalidTopicException,
        TopicError::InvalidConfig(_) | TopicError::InvalidDrive(_) => ResponseError::InvalidConfig,
        TopicError::NoDisk(_) => ResponseError::KafkaStorageError,
        TopicError::InvalidReplication(_) => ResponseError::InvalidReplicationFactor,
        // The one code that Kafka's controllers use for "later": clients ask again.
        TopicError::Control(_) => ResponseError::RequestTimedOut,
    }
}
