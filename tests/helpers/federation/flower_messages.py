"""Fields and blobs of Flower's messages."""

from fedran.federation.flower.records import read_record


def fields_of(message):
    return read_record(message.content)[0]


def blobs_of(message):
    return read_record(message.content)[1]
